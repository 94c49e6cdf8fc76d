// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pycall calls Go functions with Python's arguments: positional ones and those by keyword, as plain parameters or as
// the fields of one struct. It describes what a function takes and returns, for those who describe it to callers.
package pycall
