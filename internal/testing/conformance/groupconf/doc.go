// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package groupconf holds the Go counterparts of PyTorch's own tests of process groups: test_c10d_gloo.py,
// test_c10d_common.py and distributed_test.py. Each runs over every transport. docs/conformance.md says which is which.
package groupconf
