"""Read models: what lists, counts, plots and pages show. No decision about a job uses them."""
