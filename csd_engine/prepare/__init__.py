"""Making samples: one, or the files of a batch in few calls of the kernel; operators of the user's own."""
