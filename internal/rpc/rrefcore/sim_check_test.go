// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"fmt"
)

type violation struct{ kind, text string }

func (s *simulation) fail(kind, format string, args ...any) {
	panic(violation{kind, fmt.Sprintf(format, args...)})
}

// check tests what must hold at every moment.
func (s *simulation) check() {
	for _, w := range s.workers {
		if w.m == nil {
			continue
		}
		for fork, h := range w.m.handles {
			ref, known := w.refs[fork]
			if !known || h.state != confirmed || !h.held || h.offered {
				continue
			}
			owner := s.workers[h.owner]
			if owner.m == nil || owner.epoch != ref.life {
				continue // its process is gone; the reference will learn it
			}
			o := owner.m.objects[h.id]
			if o == nil {
				s.fail("PREMATURE", "worker %d holds a confirmed reference to %v, which its owner %d has freed", w.id, h.id, h.owner)
			}
			if _, registered := o.forks.get(fork); !registered {
				s.fail("UNKNOWN", "worker %d holds a confirmed reference %v that its owner %d does not know", w.id, fork, h.owner)
			}
			if tag, tagged := owner.tags[h.id]; tagged && tag != ref.tag {
				s.fail("WRONG", "worker %d's reference %v leads to another object", w.id, fork)
			}
		}
	}
}

// checkLost tests what must hold for a worker that has just learned of another one's death: no reference to an object of
// the dead one may look alive.
func (s *simulation) checkLost(w *simWorker, gone Worker) {
	for fork, h := range w.m.handles {
		if h.owner == gone && h.state != failed {
			s.fail("DANGLING", "worker %d knows that %d is dead, and its reference %v does not", w.id, gone, fork)
		}
	}
}
