"""Worker processes with the user's code: how they start, what they are asked, what they answer, and how they end."""
