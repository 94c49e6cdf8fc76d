// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package groupconf

// rounds is how many operations PyTorch's stress tests post before they wait for the first.
const rounds = 1000
