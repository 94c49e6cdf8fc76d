// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchtest

import "runtime"

// lockThread keeps the calling goroutine on its thread until it ends.
func lockThread() { runtime.LockOSThread() }
