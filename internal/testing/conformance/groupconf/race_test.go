// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package groupconf

// rounds is smaller than PyTorch's here: the race detector makes each operation ten times as slow.
const rounds = 100
