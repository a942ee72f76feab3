//! Members that waited for a channel's position.

use std::sync::Arc;

use throng_io::ConnId;

use crate::context::Cx;
use crate::message::UserEvent;
use crate::service::Service;
use crate::shard::state::State;

impl<S: Service> State<S> {
    /// Lets members join that wait for a channel's position.
    pub(super) fn admit(&mut self, channel: &Arc<str>, members: Vec<ConnId>) {
        for id in members {
            let Some(joined) = self.core.admit(id, channel) else { continue };
            let event = UserEvent(Box::new(joined));
            self.guarded(id, |state| {
                state.service.on_user_event(&mut Cx::new(&mut state.core, id), event);
            });
            if self.core.remote.has_presence() {
                self.core.tell_if_unannounced(id, channel);
            }
        }
    }
}
