//! The command line: flags and dispatch.
