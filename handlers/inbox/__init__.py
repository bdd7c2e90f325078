"""Deliveries from GitHub, stored before they are acknowledged and worked in order for each issue. Cancel goes first."""
