"""Plans and how they are run."""
