"""A Flower app: any configuration of userdp."""
