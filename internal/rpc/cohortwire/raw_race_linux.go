// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package cohortwire

import "syscall"

// rawRead and rawWrite are the calls of the standard library here: with them the race detector knows that what was done
// before a write comes before what is done after the read, also in programs that have several workers in one process.

func rawRead(fd uintptr, b []byte) (int, error) { return syscall.Read(int(fd), b) }

func rawWrite(fd uintptr, b []byte) (int, error) { return syscall.Write(int(fd), b) }
