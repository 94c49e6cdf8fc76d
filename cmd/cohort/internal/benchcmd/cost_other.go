// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package benchcmd

// processCost is unknown on this system.
func processCost() cost { return cost{} }
