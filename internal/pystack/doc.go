// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pystack reads the Python stacks of a running process from outside: every thread of every interpreter, with
// function, file and line. It reads the memory of the process and does not stop it, needs nothing in it, and works while
// the process holds its interpreter lock or waits in C++.
//
// CPython 3.11 to 3.14 on 64-bit Linux are understood. Free-threaded builds, older versions and other interpreters are
// refused with an error.
//
// The process changes while it is read. A stack is read twice and taken when both readings agree; one that never holds
// still is marked as moving. Every loop is bounded, so a process that exits, forks or has corrupt memory yields an error
// or a short stack.
package pystack
