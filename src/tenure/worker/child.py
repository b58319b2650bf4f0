"""`python -m tenure.worker.child FD PARENT`: what a supervisor starts. Not for people."""

import sys

from tenure.worker.serving import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
