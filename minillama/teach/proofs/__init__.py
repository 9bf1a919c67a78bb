"""What the receipt at a chapter's end shows: a module for each promoted one, each with `proofs(ours, theirs)`."""
