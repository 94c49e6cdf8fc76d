// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

// identity is who a member is before it has read its folder.
type identity struct {
	id      uint64
	cluster [16]byte
	members []membercore.Member // of a cluster that begins
	others  []membercore.Member // of one that exists
	addr    string
}

// identify finds out who a member is: from its folder, from the list of a cluster that begins, or from one that exists.
func identify(ctx context.Context, c Config) (identity, error) {
	if c.State == nil || c.Dir == "" || c.Name == "" {
		return identity{}, cohort.New("cluster: start", cohort.InvalidArgument, "a member needs a folder, a name and a state machine")
	}
	used, err := inUse(c.Dir)
	if err != nil || used {
		return identity{addr: addrOf(c)}, err
	}
	if len(c.Join) > 0 {
		return join(ctx, c)
	}
	return begin(c)
}

// inUse reports whether a folder has a log already.
func inUse(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, "identity"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func addrOf(c Config) string {
	for _, p := range c.Members {
		if p.Name == c.Name {
			return p.Addr
		}
	}
	return ""
}

// begin makes the ids of a new cluster's members from their list, so that all members make the same ones.
func begin(c Config) (self identity, err error) {
	if len(c.Members) == 0 {
		return self, cohort.New("cluster: start", cohort.InvalidArgument,
			"the folder is new: name all members of the new cluster, or members of the existing one to join")
	}
	sum := sha256.Sum256([]byte(describe(c.Members)))
	self = identity{cluster: [16]byte(sum[:]), addr: addrOf(c)}
	for _, p := range c.Members {
		named := sha256.Sum256(append(sum[:], p.Name...))
		m := membercore.Member{ID: binary.LittleEndian.Uint64(named[:])>>1 | 1, Name: p.Name, Addr: p.Addr}
		if self.members = append(self.members, m); p.Name == c.Name {
			self.id = m.ID
		}
	}
	if self.id == 0 {
		return self, cohort.Newf("cluster: start", cohort.InvalidArgument, "the list of members %s does not name this one, %q",
			describe(c.Members), c.Name)
	}
	return self, checkNames(c.Members)
}

func checkNames(members []Peer) error {
	for i, p := range members {
		if slices.ContainsFunc(members[:i], func(o Peer) bool { return o.Name == p.Name || o.Addr == p.Addr }) {
			return cohort.Newf("cluster: start", cohort.InvalidArgument, "the list of members %s has a name or an address twice",
				describe(members))
		}
	}
	return nil
}

// describe writes a list of members, the same for the same members.
func describe(members []Peer) string {
	var all []string
	for _, p := range members {
		all = append(all, p.Name+"="+p.Addr)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// join asks a cluster who this member is in it.
func join(ctx context.Context, c Config) (identity, error) {
	var a answer
	err := ask(ctx, c.Join, c.TLS, request{Op: opJoin, Name: c.Name}, &a)
	if err != nil {
		return identity{}, fmt.Errorf("join the cluster: %w", err)
	}
	self := identity{id: a.ID, addr: a.Addr, others: a.Members}
	if copy(self.cluster[:], a.Cluster) != len(self.cluster) || self.id == 0 {
		return identity{}, cohort.New("cluster: join", cohort.Protocol, "the answer of the cluster is malformed")
	}
	return self, nil
}

// folderIdentity keeps a member's id in the identity of its folder.
func (i identity) folderIdentity(random uint64) (id storelog.ID) {
	binary.LittleEndian.PutUint64(id[:], i.id)
	binary.LittleEndian.PutUint64(id[8:], random)
	return id
}

func idOf(id storelog.ID) uint64 { return binary.LittleEndian.Uint64(id[:]) }

// request is what a person or a new member asks a member, answer what it says.
type request struct {
	Op   string `json:"op"`
	Name string `json:"name,omitempty"`
	Addr string `json:"addr,omitempty"`
}

type answer struct {
	Error   string  `json:"error,omitempty"`
	Code    string  `json:"code,omitempty"`
	Leader  string  `json:"leader,omitempty"` // ask there
	ID      uint64  `json:"id,string,omitempty"`
	Addr    string  `json:"addr,omitempty"`
	Cluster []byte  `json:"cluster,omitempty"`
	Status  *Status `json:"status,omitempty"`
	// Members are for a new member: it has to answer them before it has their list from the log.
	Members []membercore.Member `json:"members,omitempty"`
}

const (
	opStatus   = "status"
	opJoin     = "join"
	opAdd      = "add"
	opRemove   = "remove"
	opTransfer = "transfer"
)

// encode and decode are for documents between members.
func encode(v any) []byte {
	doc, err := json.Marshal(v)
	if err != nil {
		doc, _ = json.Marshal(answer{Error: err.Error()}) //nolint:errchkjson // a string does not fail
	}
	return doc
}
