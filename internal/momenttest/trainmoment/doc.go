// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package trainmoment makes contexts end and groups close at every moment of a data-parallel backward pass.
package trainmoment
