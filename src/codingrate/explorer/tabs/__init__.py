"""The tabs of the explorer: thin layouts over the functions that compute what they show."""
