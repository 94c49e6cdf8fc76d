// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package invariants

// Enabled reports whether invariants are checked.
const Enabled = true
