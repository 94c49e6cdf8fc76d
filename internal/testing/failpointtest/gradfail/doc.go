// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gradfail holds the moment tests of distributed backward passes and of the clean-up of their contexts.
package gradfail
