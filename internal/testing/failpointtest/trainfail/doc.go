// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package trainfail holds the moment tests of data-parallel backward passes: contexts end and groups close at every
// point.
package trainfail
