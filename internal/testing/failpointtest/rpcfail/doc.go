// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcfail holds the moment tests of RPC: calls, callbacks, references, workers that come and go, over both
// wires.
package rpcfail
