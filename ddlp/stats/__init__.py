"""The numbers of a loader: what an epoch did (its report), and what all of them do now."""
