// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storeconf holds the Go counterparts of those tests of PyTorch's test_store.py that cross packages: stores over
// TCP, worlds and rendezvous. docs/conformance.md says which is which.
package storeconf
