"""Engines that tests start: real ones, and fakes of cloud services that do not run locally."""
