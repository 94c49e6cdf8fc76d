// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments && !linux

package failpointtest

import "os"

func signalSelf(bool) { panic("processes are killed and stopped on Linux only") }

func resume(*os.Process) {}
