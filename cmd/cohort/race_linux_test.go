// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package main

// With the race detector a program needs several times the memory.
func init() { memoryFactor = 8 }
