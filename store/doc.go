// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package store holds the key-value stores through which the processes of a job find each other.
package store
