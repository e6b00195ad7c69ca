//! Working sets and their turns.

use broker_core::{Broker, OperatorRequest, Reply};
use tonic::Status;
use vramd_proto::v1;
use vramd_types::SessionId;

use super::{Admin, Operator};
use crate::grpc::{
    convert::{page::Page, request as convert, turns as view},
    status::{self, refused},
};

impl Admin {
    pub(super) async fn turns(&self, message: v1::ListTurnsRequest) -> Result<v1::ListTurnsResponse, Status> {
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        let mut views = self.read(Broker::working_sets).await?;
        views.retain(|view| tenant.as_ref().is_none_or(|tenant| *view.tenant == **tenant));
        let (views, next_page_token) = page.cut(views);
        let turns = views.iter().map(|it| view::turn(it, self.facts.started_at)).collect();
        Ok(v1::ListTurnsResponse { turns, next_page_token })
    }

    pub(super) async fn yield_turn_of(
        &self,
        operator: Operator,
        message: v1::YieldTurnRequest,
    ) -> Result<v1::YieldTurnResponse, Status> {
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        let session = SessionId::from_shown(message.session_id);
        let change = OperatorRequest::YieldTurn { session, set: message.set_name };
        match self.submit(operator, key, change).await? {
            Reply::TurnAsked => Ok(v1::YieldTurnResponse {}),
            other => Err(status::wrong_reply("YieldTurn", &other)),
        }
    }
}
