// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package supervisor

// Runs returns nothing: other systems do not show the environments of processes.
func Runs(string) []string { return nil }

// KillMarked kills nothing.
func KillMarked(string) (killed, left int, err error) { return 0, 0, nil }
