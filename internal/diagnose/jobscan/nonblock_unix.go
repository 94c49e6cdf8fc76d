// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package jobscan

import "syscall"

// nonblock has a pipe without a reader refused when it is opened.
const nonblock = syscall.O_NONBLOCK
