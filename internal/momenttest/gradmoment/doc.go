// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gradmoment makes things happen at the moments of a distributed backward pass and of the clean-up of its context.
package gradmoment
