// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"fmt"
	"net/netip"
)

// TorchPortError says that a port is one over which processes of PyTorch talk to each other, and no store.
type TorchPortError struct {
	At    netip.AddrPort
	Owner Owner
}

// Error says what the port is.
func (e *TorchPortError) Error() string {
	return fmt.Sprintf("port %d of %s belongs to gloo or to RPC (TensorPipe) of a PyTorch process, %s: a store of PyTorch listens on all "+
		"addresses. What a client of a store says there could end that process, so it was not contacted; check the port",
		e.At.Port(), e.At.Addr(), e.Owner)
}
