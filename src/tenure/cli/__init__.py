"""The command line: parses arguments and prints answers; decides nothing."""
