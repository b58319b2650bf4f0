"""The conformance kit: the contract as tests that any store or worker can be run against."""
