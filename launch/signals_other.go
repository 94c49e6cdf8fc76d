// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package launch

const (
	sigUSR1 = 10
	sigUSR2 = 12
	sigCONT = 18
	sigTSTP = 20
)
