// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package stacks reads the Python stacks of a running process from outside: every thread of every interpreter, with
// function, file and line. It reads the memory of the process without stopping it, needs no code inside it, and works
// even while the process holds its interpreter lock or waits in C++.
//
// It supports CPython 3.11 to 3.14 on 64-bit Linux. Free-threaded builds, older versions and other interpreters are
// refused with an error.
//
// The process changes while it is read. A stack is read twice and accepted if both readings agree; one that keeps
// changing is marked as moving. Every loop is bounded, so a process that exits, forks or has corrupt memory yields an
// error or a short stack.
package stacks
