"""Small models: an inventory file, the attempts of one transfer, notes, numbers, ends of views."""
