// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcconf holds the Go counterparts of the tests in PyTorch's rpc_test.py and faulty_agent_rpc_test.py. As there,
// most run in a world of four workers; here all workers live in one process. docs/conformance.md says which test is the
// counterpart of which.
package rpcconf
