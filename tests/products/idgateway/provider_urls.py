"""The pages of the provider: those of Django OAuth Toolkit, a login, and an administrator who ends all tokens."""

from django.contrib.auth.views import LoginView
from django.http import HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from oauth2_provider.models import AccessToken


@csrf_exempt
def end_all(request):
    AccessToken.objects.all().delete()
    return HttpResponse(status=204)


urlpatterns = [
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
    path("login/", LoginView.as_view()),
    path("end-all", end_all),
]
