// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/launch"
)

// meeting reads where the processes meet: the store of one node, or the rendezvous of several.
func (o *Options) meeting(v values) error {
	o.Role = v["role"]
	o.MasterAddr, o.Nodes.LocalAddr = v["master-addr"], v["local-addr"]
	var err error
	if o.MasterPort, err = v.count("master-port", 0); err != nil || o.MasterPort > math.MaxUint16 {
		return fmt.Errorf("--master-port %s: it must be a number up to 65535", v["master-port"])
	}
	if o.MasterAddr == "localhost" {
		o.MasterAddr = "127.0.0.1"
	}
	switch backend := v["rdzv-backend"]; backend {
	case "", "static", "c10d":
	case "etcd", "etcd-v2":
		return fmt.Errorf(
			"--rdzv-backend %s is not supported: use c10d with an endpoint, or \"cohort store serve\" as the endpoint", backend)
	default:
		return fmt.Errorf("--rdzv-backend %s: a backend of another package needs Python inside the launcher; static and c10d work", backend)
	}
	for pair := range strings.SplitSeq(v["rdzv-conf"], ",") {
		if pair != "" && !strings.Contains(pair, "=") {
			return fmt.Errorf("--rdzv-conf: %q is not KEY=VALUE", pair)
		}
	}
	if id := v["rdzv-id"]; id != "" && id != "none" && v["standalone"] == "" {
		o.RunID = id
	}
	if v["standalone"] != "" {
		o.Nodes.Min, o.Nodes.Max, o.MasterAddr, o.MasterPort = 1, 1, "", 0
	}
	if o.Nodes.Max > 1 {
		return o.nodes(v)
	}
	if n := v["node-rank"]; n != "" && n != "0" {
		return fmt.Errorf("--node-rank %s: there is one node, number 0", n)
	}
	if addr := o.MasterAddr; addr != "" && net.ParseIP(addr) == nil {
		o.note("the store listens on %s", addr)
	}
	return nil
}

// nodes reads what concerns several nodes. With torchrun's static rendezvous the nodes meet at --master-addr and
// --master-port of node 0, else at --rdzv-endpoint.
func (o *Options) nodes(v values) error {
	conf := map[string]string{}
	for pair := range strings.SplitSeq(v["rdzv-conf"], ",") {
		if key, value, found := strings.Cut(pair, "="); found {
			conf[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	if kind := conf["store_type"]; kind != "" && kind != "tcp" {
		return fmt.Errorf("--rdzv-conf store_type=%s is not supported: the launchers meet over TCP", kind)
	}
	static := v["rdzv-backend"] == "" && v["rdzv-endpoint"] == "" || v["rdzv-backend"] == "static"
	endpoint, port := v["rdzv-endpoint"], "29400"
	if static {
		port = "29500"
		if endpoint == "" {
			endpoint = o.MasterAddr
		}
		if o.MasterPort != 0 {
			port = strconv.Itoa(o.MasterPort)
		}
	}
	if endpoint == "" {
		return errors.New("--nnodes: the nodes need a place to meet: --rdzv-endpoint HOST[:PORT], or --master-addr HOST")
	}
	place, err := meetingPlace(endpoint, port)
	if err != nil {
		return err
	}
	o.Nodes.Endpoint, o.MasterAddr, o.MasterPort = place, "", 0
	if err := o.hosting(v["node-rank"], static, conf["is_host"]); err != nil {
		return err
	}
	return o.nodeLimits(conf, static)
}

// hosting reads the number of this node and whether it hosts the rendezvous: with the static one node 0 does, unless is_host says.
func (o *Options) hosting(number string, static bool, host string) error {
	if number != "" {
		rank, err := strconv.Atoi(number)
		if err != nil || rank < 0 || rank >= o.Nodes.Max {
			return fmt.Errorf("--node-rank %s: it must be a number below %d", number, o.Nodes.Max)
		}
		o.Nodes.Rank = &rank
		switch {
		case static && rank == 0:
			o.Nodes.Host = launch.HostAlways
		case static:
			o.Nodes.Host = launch.HostNever
		}
	}
	switch strings.ToLower(host) {
	case "":
	case "1", "true", "t", "yes", "y":
		o.Nodes.Host = launch.HostAlways
	case "0", "false", "f", "no", "n":
		o.Nodes.Host = launch.HostNever
	default:
		return fmt.Errorf("--rdzv-conf is_host=%s: it must be 1 or 0", host)
	}
	return nil
}

// nodeLimits reads the times and the port of --rdzv-conf.
func (o *Options) nodeLimits(conf map[string]string, static bool) (err error) {
	join := "join_timeout"
	if static && conf[join] == "" {
		join = "timeout" // what torchrun's static rendezvous calls it
	}
	for key, to := range map[string]*time.Duration{
		join: &o.Nodes.JoinTimeout, "last_call_timeout": &o.Nodes.LastCall,
		"heartbeat_timeout": &o.Nodes.Silence,
	} {
		if *to, err = seconds("--rdzv-conf "+key, conf[key]); err != nil {
			return err
		}
	}
	switch gateway := conf["store_gateway"]; gateway {
	case "", "0":
	case "1":
		o.Nodes.StoreGateway = true
	default:
		return fmt.Errorf("--rdzv-conf store_gateway=%s: it must be 1 or 0", gateway)
	}
	if p := conf["store_port"]; p != "" {
		if o.Nodes.StorePort, err = strconv.Atoi(p); err != nil || o.Nodes.StorePort < 0 || o.Nodes.StorePort > math.MaxUint16 {
			return fmt.Errorf("--rdzv-conf store_port=%s: it must be a port", p)
		}
	}
	return nil
}

// meetingPlace completes HOST or HOST:PORT.
func meetingPlace(endpoint, port string) (string, error) {
	host, given, err := net.SplitHostPort(endpoint)
	if err != nil {
		host, given = strings.Trim(endpoint, "[]"), port
	}
	_, notIP := netip.ParseAddr(host)
	if _, badPort := strconv.ParseUint(given, 10, 16); badPort != nil || host == "" || notIP != nil && strings.Contains(host, ":") {
		return "", fmt.Errorf("the nodes cannot meet at %q: it must be HOST or HOST:PORT, an IPv6 host in brackets", endpoint)
	}
	return net.JoinHostPort(host, given), nil
}
