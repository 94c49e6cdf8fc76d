// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import "fmt"

// String names the server by its address.
func (s *Server) String() string { return fmt.Sprint("tcpstore server at ", s.addr) }

// String says how many servers are shared.
func (s *Shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d shared tcpstore servers", len(s.mu.servers))
}
