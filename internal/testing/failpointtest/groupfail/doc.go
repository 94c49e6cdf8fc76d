// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package groupfail holds the moment tests of process groups: every operation over every transport, with ranks that are
// goroutines and with ranks that are processes, which kill or stop themselves at a point.
package groupfail
