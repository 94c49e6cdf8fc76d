// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package rrefcore

// raceEnabled shortens the long explorations: the machine has no goroutine for the race detector to look at.
const raceEnabled = true
