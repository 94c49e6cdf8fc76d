// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccmd

import "github.com/cohort-dist/cohort/rpc"

// refsDocument is what "cohort rpc refs" prints for programs.
type refsDocument struct {
	Workers []refsWorker      `json:"workers"`
	Cycles  [][]string        `json:"cycles"`
	Skipped []string          `json:"skipped,omitempty"`
	Failed  map[string]string `json:"failed,omitempty"`
}

type refsWorker struct {
	Worker  string       `json:"worker"`
	Objects []refsObject `json:"objects"`
	Handles []refsHandle `json:"handles"`
}

type refsObject struct {
	ID      string         `json:"id"`
	Type    string         `json:"type,omitempty"`
	Created string         `json:"created_by,omitempty"`
	AgeS    float64        `json:"age_s"`
	Size    int            `json:"size_bytes,omitempty"`
	Ready   bool           `json:"ready"`
	Error   string         `json:"error,omitempty"`
	Local   int            `json:"local_uses"`
	Forks   []refsFork     `json:"forks"`
	Holds   []rpc.HoldInfo `json:"holds,omitempty"`
}

type refsFork struct {
	ID     string  `json:"id"`
	Holder string  `json:"holder"`
	Age    float64 `json:"age_s"`
	Silent float64 `json:"silent_s"`
}

type refsHandle struct {
	ID      string  `json:"id"`
	Fork    string  `json:"fork"`
	Owner   string  `json:"owner"`
	State   string  `json:"state"`
	Created string  `json:"created_by,omitempty"`
	Age     float64 `json:"age_s"`
	Pins    int     `json:"pins,omitempty"`
}

func (r *refsReport) document() refsDocument {
	d := refsDocument{Workers: []refsWorker{}, Cycles: r.Cycles, Skipped: r.Skipped, Failed: r.Failed}
	for _, w := range r.Workers {
		row := refsWorker{Worker: w.Worker, Objects: []refsObject{}, Handles: []refsHandle{}}
		for _, o := range w.Objects {
			row.Objects = append(row.Objects, objectOf(o))
		}
		for _, h := range w.Handles {
			row.Handles = append(row.Handles, refsHandle(h))
		}
		d.Workers = append(d.Workers, row)
	}
	return d
}

func objectOf(o rpc.ObjectInfo) refsObject {
	row := refsObject{
		ID: o.ID, Type: o.Type, Created: o.Created, AgeS: o.Age, Size: o.Size, Ready: o.Ready, Error: o.Error, Local: o.Local,
		Forks: []refsFork{}, Holds: o.Holds,
	}
	for _, f := range o.Forks {
		row.Forks = append(row.Forks, refsFork(f))
	}
	return row
}
