"""The client: decorated functions, enqueueing and handles, over a coordinator it is given."""
