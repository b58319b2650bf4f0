"""What contributors run and nobody installs: writers of documents, vectors and golden logs."""
