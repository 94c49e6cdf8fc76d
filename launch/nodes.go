// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"
)

// checkNodes checks what concerns several nodes.
func (c Config) checkNodes() error {
	if c.MinNodes < 1 || c.MaxNodes < c.MinNodes || c.MaxNodes > maxNodes {
		return fmt.Errorf("launch: %d to %d nodes: the first must be at least 1 and at most the second", c.MinNodes, c.MaxNodes)
	}
	if c.MaxNodes == 1 {
		return nil
	}
	if c.Endpoint == "" {
		return errors.New("launch: a job on several nodes needs an endpoint where they meet: --rdzv-endpoint HOST:PORT")
	}
	switch _, port, err := net.SplitHostPort(c.Endpoint); {
	case err != nil:
		return fmt.Errorf("launch: the endpoint %q is not HOST:PORT", c.Endpoint)
	case port == "0":
		return fmt.Errorf("launch: the endpoint %s has no port: the nodes of a job need one that all of them know", c.Endpoint)
	}
	if c.NoShim {
		return errors.New("launch: without the shim rank 0 would have to host the store, which works on one node only")
	}
	return nil
}

// hosts reports whether this launcher should host the rendezvous: the endpoint is an address of this machine.
func (c Config) hosts() bool {
	switch c.Host {
	case "yes":
		return true
	case "no":
		return false
	}
	name, _, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		return false
	}
	if host, _ := os.Hostname(); host == name || name == "" || name == "localhost" {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, name)
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(ips, func(ip net.IPAddr) bool {
		return ip.IP.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(ip.IP)
		})
	})
}
