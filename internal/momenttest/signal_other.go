// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments && !linux

package momenttest

func signalSelf(bool) { panic("processes are killed and stopped on Linux only") }
